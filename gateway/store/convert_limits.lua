-- Converts the rates of an account in one scope from layout 1, where each had a key of its own. Returns 0 if that was done before.
-- KEYS the rate of requests, the rate of tokens, both
local requests, tokens = unpack(redis.call('MGET', KEYS[1], KEYS[2]))
if not requests and not tokens then return 0 end
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3], (requests or '0 0') .. ' ' .. (tokens or '0 0'))
  local left = { redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]) }
  if left[1] ~= -1 and left[2] ~= -1 then redis.call('PEXPIRE', KEYS[3], math.max(left[1], left[2])) end
end
redis.call('UNLINK', KEYS[1], KEYS[2])
return 1
