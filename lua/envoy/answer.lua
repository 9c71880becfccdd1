-- A refusal -> the client's answer: OpenAI-shaped JSON over HTTP, a status and a message over gRPC.
-- Bodies are constants: nothing a client sent is echoed, and header compression keeps working.
local answer = {}

-- Envoy's own mapping would make 404 "unimplemented" and 429 "unavailable".
local GRPC_STATUS = {
  ["400"] = "3", -- INVALID_ARGUMENT
  ["401"] = "16", -- UNAUTHENTICATED
  ["403"] = "7", -- PERMISSION_DENIED
  ["404"] = "5", -- NOT_FOUND
  ["429"] = "8", -- RESOURCE_EXHAUSTED
  ["503"] = "14", -- UNAVAILABLE
}

function answer.body(kind, code, message)
  return '{"error":{"message":"' .. message .. '","type":"' .. kind .. '","param":null,"code":"' .. code .. '"}}'
end

-- `extra`: more response headers.
function answer.refusal(status, kind, code, message, extra)
  return {
    status = status,
    message = message,
    body = answer.body(kind, code, message),
    extra = extra or {},
  }
end

function answer.is_grpc(headers)
  local content_type = headers:get("content-type")
  return content_type == "application/grpc" or (content_type ~= nil and content_type:sub(1, 17) == "application/grpc+")
end

answer.UNAVAILABLE = answer.refusal("503", "server_error", "gateway_not_ready",
  "The gateway has no limits yet. Try again later.", { ["retry-after"] = "1" })

-- Ends the script: nothing after it runs.
function answer.refuse(handle, refusal)
  local headers = { [":status"] = refusal.status }
  for name, value in pairs(refusal.extra) do
    headers[name] = value
  end
  if answer.is_grpc(handle:headers()) then
    headers["grpc-status"] = GRPC_STATUS[refusal.status] or "2"
    handle:respond(headers, refusal.message)
  else
    headers["content-type"] = "application/json"
    handle:respond(headers, refusal.body)
  end
end

-- Runs `judge(handle)`, which returns a refusal or nothing. Envoy lets a request pass when a script fails, so a
-- failure of ours has to be made a refusal here.
function answer.guard(handle, judge)
  local ok, refusal = pcall(judge, handle)
  if not ok then
    handle:logErr("tidegate: " .. tostring(refusal))
    refusal = answer.UNAVAILABLE
  end
  if refusal then
    answer.refuse(handle, refusal)
  end
end

return answer
