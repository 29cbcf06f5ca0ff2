#include "common/program/chat.h"
#include "common/program/program.h"
#include "conversation.h"

using namespace staircase;

int main(int argc, char** argv) {
  TextOptions options;
  ChatOptions chat;
  Program program("Talks with a language model.", false);
  LiveOptions settings(program);
  add_options(settings, options.stopping);
  add_options(settings, options.sampling);
  add_options(program, chat);
  add_session_option(program, chat);
  program.add_dtype_option({});
  program.add_cache_dtype_option();
  return program.run(argc, argv, [&](NamedModel& named, const Tokenizer& tokenizer) {
    Model& model = named.model;
    const ChatTemplate chat_template = ChatTemplate::load(model.path(), chat.chat_template);
    Conversation conversation(model, tokenizer, chat_template, options);
    settings.on_set("--seed", [&] { conversation.reseed(); });
    std::optional<SessionFile> file;
    if (!chat.session.empty()) {
      file.emplace(chat.session, model, chat_template);
      if (auto saved = file->read()) chat.store.messages = conversation.restore(*saved);
      chat.store.save = [&](const std::vector<Message>& messages) { conversation.save(*file, messages); };
    }
    hold_conversation(chat, settings, tokenizer, model,
                      [&](const std::vector<Message>& messages, const OnToken& on_token) {
                        return conversation.answer(messages, on_token);
                      });
  });
}
