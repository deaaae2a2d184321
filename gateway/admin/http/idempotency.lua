-- What is known of an Idempotency-Key: a hash with the fingerprint of the request, until when an attempt has it, and the answer.
-- KEYS[1]: the hash. ARGV: what to do, the fingerprint, milliseconds of an attempt, seconds that the key is kept, the answer.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'fingerprint', 'until', 'answer')
local mine = found[1] == ARGV[2] and not found[3]

if ARGV[1] == 'begin' then
  if found[1] and found[1] ~= ARGV[2] then
    return {'reused'}
  elseif found[3] then
    return {'answered', found[3]}
  elseif found[2] and tonumber(found[2]) > now then
    return {'in_use'}
  end
  redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'until', string.format('%d', now + ARGV[3]))
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  return {'begun'}
elseif mine and ARGV[1] == 'go on' then
  redis.call('HSET', KEYS[1], 'until', string.format('%d', now + ARGV[3]))
elseif mine and ARGV[1] == 'keep' then
  redis.call('HSET', KEYS[1], 'answer', ARGV[5])
  redis.call('EXPIRE', KEYS[1], ARGV[4])
elseif mine and ARGV[1] == 'forget' then
  redis.call('DEL', KEYS[1])
end
return {}
