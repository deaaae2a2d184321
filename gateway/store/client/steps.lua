-- Runs `functions`, which the text before this one defines, in their order until one stops or fails.
-- KEYS  the keys of all functions
-- ARGV  for each function the number of its keys and of its arguments; then the arguments of all functions
-- Returns for each function that ran { status, reply }: 0 ran, 1 ran and stopped, 2 failed (the reply is the error's text).
local replies, key, argument = {}, 1, 2 * #functions + 1
for index = 1, #functions do
  local next_key, next_argument = key + ARGV[2 * index - 1], argument + ARGV[2 * index]
  local keys = { unpack(KEYS, key, next_key - 1) }
  local arguments = { unpack(ARGV, argument, next_argument - 1) }
  local ran, reply, stop = pcall(functions[index], keys, arguments)
  if not ran then
    local text = type(reply) == 'table' and reply.err or tostring(reply)
    text = text:gsub('^%-', ''):gsub('^@?user_script: ?%d+: ', '')
    if text:find('^READONLY') then -- the client must look for the new primary
      return redis.error_reply(text)
    end
    replies[index] = { 2, text }
    return replies
  end
  if reply == nil then
    reply = false
  end
  replies[index] = { stop and 1 or 0, reply }
  if stop then
    return replies
  end
  key, argument = next_key, next_argument
end
return replies
