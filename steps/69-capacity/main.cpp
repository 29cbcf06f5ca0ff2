#include "capacity.h"
#include "common/program/program.h"
#include "memory_estimate.h"

using namespace staircase;

int main(int argc, char** argv) {
  FleetOptions fleet;
  Workload load;
  PrefillOptions prefill;
  PagedOptions paged;
  SweepOptions sweep;
  Program program("Predicts how many requests a model can serve on this machine.", false);
  add_options(program, fleet);
  add_options(program, load);
  add_options(program, prefill);
  add_options(program, paged);
  add_options(program, sweep);
  program.add_dtype_option(memory_estimate);
  return program.run(argc, argv, [&](NamedModel& named, const Tokenizer& tokenizer) {
    plan({fleet, named.model, tokenizer, prefill, paged}, load, sweep);
  });
}
