#include "block/filters/trace_node.h"

namespace spindle {

TraceNode::TraceNode(std::shared_ptr<Node> child)
    : Node(child->reactor()), child_(std::move(child)), track_("node " + child_->facts().name) {}

Task<Result<>> TraceNode::traced(const char* name, trace::Range range, Task<Result<>> operation) {
  trace::Id request = trace::taken();
  if (request == 0) request = track_.new_request();
  trace::begin(request, name, range);
  auto result = co_await operation;
  trace::end(request, name, trace::outcome_of(result));
  co_return result;
}

}  // namespace spindle
