-- Writes fields of a new or an existing account atomically.
-- KEYS[1] gw:{account}:account   ARGV[1] 'new' or 'old', then fields and values
local status = redis.call('HGET', KEYS[1], 'status')
if ARGV[1] == 'new' then
  if status then return 'EXISTS' end
else
  if not status then return 'UNKNOWN' end
  if status == 'closed' then return 'CLOSED' end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
if redis.call('HGET', KEYS[1], 'status') ~= 'active' then
  redis.pcall('PUBLISH', 'gw:revoked', string.match(KEYS[1], '{(.*)}'))
end
return 'OK'
