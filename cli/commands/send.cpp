// SPDX-License-Identifier: Apache-2.0
// muster send: an operator's command to a run, through its collector.
#include "cli/commands/subcommands.h"

#include <muster/common/random.h>
#include <muster/launcher/wire_client.h>

#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>
#include <variant>

namespace muster::cli {

namespace {

constexpr auto kTimeout = std::chrono::seconds{10};

struct SendFlags {
  std::string collector{"127.0.0.1:29600"};
  std::string run_id;
  std::string command;
  double tau{std::nan("")};
  std::string reason;
  std::string token_file;
  std::int64_t expires_steps{-1};
};

Expected<wire::CommandRequest> make_request(const SendFlags& flags) {
  wire::CommandRequest request;
  request.run_id = flags.run_id;
  request.reason = flags.reason;
  request.issuer = "operator";
  request.expires_steps = flags.expires_steps;
  if (flags.command == "qk-clip") {
    if (!std::isfinite(flags.tau) || flags.tau < 0) {
      return invalid_argument("qk-clip needs a threshold: `qk-clip 100`, or 0 to switch it off");
    }
    request.kind = CommandKind::kSetQkClipThreshold;
    request.argument = flags.tau;
    return request;
  }
  if (!std::isnan(flags.tau)) {
    return invalid_argument("'" + flags.command + "' takes no number");
  }
  request.kind = flags.command == "checkpoint" ? CommandKind::kCheckpointNow
                 : flags.command == "skip"     ? CommandKind::kSkipStep
                                               : CommandKind::kStop;
  return request;
}

Expected<CommandId> send(const SendFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const wire::CommandRequest request, make_request(flags));
  MUSTER_ASSIGN_OR_RETURN(std::string token, read_token(flags.token_file));
  wire::Hello hello;
  hello.role = wire::PeerRole::kOperator;
  hello.identity = {flags.run_id, Generation{0}, Rank{-1}, random_hex_id()};
  hello.token = std::move(token);
  const Deadline deadline = Deadline::after(kTimeout);
  MUSTER_ASSIGN_OR_RETURN(
      launcher::WireClient client, launcher::WireClient::connect(flags.collector, hello, deadline));
  MUSTER_RETURN_IF_ERROR(client.send(request, deadline));
  while (true) {
    MUSTER_ASSIGN_OR_RETURN(const wire::Message message, client.receive(deadline));
    if (const auto* accepted = std::get_if<wire::CommandAccepted>(&message)) {
      static_cast<void>(client.send(wire::Goodbye{"done", false}, deadline));
      return accepted->id;
    }
    if (const auto* goodbye = std::get_if<wire::Goodbye>(&message)) {
      return failed_precondition("the collector refused: " + goodbye->reason);
    }
  }
}

}  // namespace

Action declare_send(CLI::App& command, const Tail& /*tail*/) {
  const auto flags = std::make_shared<SendFlags>();
  command.footer(
      "Every rank runs the command at the same step, once; `muster status` shows when.\n\n"
      "Examples:\n"
      "  muster send --run moby checkpoint --reason \"before the change\"\n"
      "  muster send --collector 127.0.0.1:29600 --run moby qk-clip 100\n"
      "  muster send --run moby stop");
  command.add_option("--collector", flags->collector, "HOST:PORT of the collector")
      ->envname("MUSTER_COLLECTOR")
      ->capture_default_str();
  command.add_option("--run", flags->run_id, "The run")->required();
  command.add_option("COMMAND", flags->command, "checkpoint, skip, stop or qk-clip")
      ->required()
      ->check(CLI::IsMember({"checkpoint", "skip", "stop", "qk-clip"}));
  command.add_option("TAU", flags->tau, "Threshold of qk-clip; 0 switches it off");
  command.add_option("--reason", flags->reason, "Why; kept with the command");
  command.add_option("--token-file", flags->token_file, "File with the collector's token")
      ->envname("MUSTER_TOKEN_FILE");
  command.add_option(
      "--expires-steps", flags->expires_steps, "Do not run it later than this many steps from now");
  return [flags]() -> int {
    const auto id = send(*flags);
    if (!id) {
      return fail("send", id.status());
    }
    std::printf(
        "command %llu: %s for run %s\n",
        static_cast<unsigned long long>(id->value()),
        flags->command.c_str(),
        flags->run_id.c_str());
    return 0;
  };
}

}  // namespace muster::cli
