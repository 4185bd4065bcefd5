// SPDX-License-Identifier: Apache-2.0
// Access checks in front of every route. Pure functions.
#pragma once

#include "dashboard/server/http_message.h"

#include <muster/common/status.h>

#include <string>
#include <string_view>

namespace muster::dashboard {

// True for 127.0.0.0/8, ::1 and localhost, with or without a port.
[[nodiscard]] bool is_loopback_name(std::string_view host);

// Against DNS rebinding: a page that listens on loopback answers only to loopback names.
[[nodiscard]] Status check_host(const HttpRequest& request, bool listens_on_loopback);

// A command needs a JSON body, the X-Muster-Operator header (a foreign page cannot send it without
// a preflight, which is never granted), an Origin that is this server when there is one, and the
// token when one is set. Beyond loopback a token is not optional.
[[nodiscard]] Status check_operator(
    const HttpRequest& request, const std::string& token, bool listens_on_loopback);

}  // namespace muster::dashboard
