#!/bin/bash
# PreCompact: forbids to compact the history.
cat > /dev/null
echo '{"decision": "block", "reason": "Keep the whole history."}'
