#include "common/program/json_output.h"

#include <nlohmann/json.hpp>

namespace staircase {
namespace {

using Json = nlohmann::ordered_json;

template <typename Number>
Json number_or_null(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}

/// The common part of every object about a token.
Json token_json(int id, const Tokenizer& tokenizer) {
  return {{"token_id", id}, {"text", tokenizer.decode(std::span(&id, 1))}};
}

/// One object per token: its log-probability and those of the most likely tokens at its position.
Json logprobs_json(const std::vector<Token>& tokens, const Tokenizer& tokenizer) {
  Json all = Json::array();
  for (const Token& token : tokens) {
    Json& one = all.emplace_back(token_json(token.id, tokenizer));
    one["logprob"] = number_or_null(token.logprobs->own);
    Json& top = one["top_logprobs"] = Json::array();
    for (const Logprob& other : token.logprobs->likeliest) {
      top.emplace_back(token_json(other.token_id, tokenizer))["logprob"] = other.logprob;
    }
  }
  return all;
}

/// For each token, the list of candidates that it was chosen from.
Json candidates_json(const std::vector<std::vector<Candidate>>& candidates, const Tokenizer& tokenizer) {
  Json all = Json::array();
  for (const std::vector<Candidate>& of_one_token : candidates) {
    Json& one = all.emplace_back(Json::array());
    for (const Candidate& candidate : of_one_token) {
      one.emplace_back(token_json(candidate.token_id, tokenizer))["probability"] = candidate.probability;
    }
  }
  return all;
}

Json sequence_json(const Sequence& sequence, const Transcript& transcript, const Tokenizer& tokenizer) {
  Json json = {{"prompt_token_ids", transcript.prompts[static_cast<std::size_t>(sequence.prompt)]},
               {"token_ids", sequence.token_ids},
               {"text", sequence.text},
               {"finish_reason", to_string(sequence.finish_reason)}};
  if (sequence.score) json["score"] = *sequence.score;
  if (const auto echo = transcript.echoes.find(sequence.prompt); echo != transcript.echoes.end()) {
    json["prompt_logprobs"] = logprobs_json(echo->second.tokens, tokenizer);
    json["perplexity"] = number_or_null(echo->second.perplexity);
  }
  if (!sequence.tokens_with_logprobs.empty()) {
    json["logprobs"] = logprobs_json(sequence.tokens_with_logprobs, tokenizer);
  }
  if (!sequence.candidates.empty()) json["candidates"] = candidates_json(sequence.candidates, tokenizer);
  return json;
}

Json statistics_json(const Transcript& transcript) {
  const Statistics& statistics = transcript.statistics;
  Json json = {{"prompt_tokens", statistics.prompt_tokens},
               {"new_tokens", statistics.new_tokens},
               {"prefill_ms", statistics.prefill_ms},
               {"ms_per_token", statistics.ms_per_token()},
               {"tokens_per_second", statistics.tokens_per_second()},
               {"weight_bytes", statistics.weight_bytes},
               {"activation_bytes", statistics.activation_bytes},
               {"cache_bytes", statistics.cache.bytes},
               {"cache_allocated_bytes", statistics.cache.allocated},
               {"cache_copied_bytes", statistics.cache.copied}};
  for (const auto& [name, value] : transcript.more_statistics) json[name] = value;
  return json;
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStop:
      return "stop";
  }
  return "";
}

std::string to_json(const Transcript& transcript, const Tokenizer& tokenizer) {
  Json json;
  json["sequences"] = Json::array();
  for (const Sequence& sequence : transcript.sequences) {
    json["sequences"].push_back(sequence_json(sequence, transcript, tokenizer));
  }
  json["stats"] = statistics_json(transcript);
  return json.dump();
}

}  // namespace staircase
