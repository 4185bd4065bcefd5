// SPDX-License-Identifier: Apache-2.0
// The worker thread's read-only view of the store, opened when first needed.
//
// Not thread-safe: used on the worker thread only, because a Query belongs to one thread.
#pragma once

#include <muster/store/query.h>

#include <functional>
#include <memory>
#include <utility>

namespace muster::dashboard {

using QueryFactory = std::function<Expected<std::unique_ptr<store::Query>>()>;

class QuerySource {
 public:
  explicit QuerySource(QueryFactory open) : open_(std::move(open)) {}

  // Lives as long as this. The factory's error while the store cannot be opened; asked again next
  // time, so a dashboard that starts before its database recovers by itself.
  [[nodiscard]] Expected<store::Query*> get() {
    if (!query_) {
      MUSTER_ASSIGN_OR_RETURN(query_, open_());
    }
    return query_.get();
  }

 private:
  QueryFactory open_;
  std::unique_ptr<store::Query> query_;
};

}  // namespace muster::dashboard
