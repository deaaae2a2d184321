-- Writes fields of a new or an existing account atomically; a new one gets a balance of zero.
-- KEYS gw:{account}:account, gw:{account}:wallet   ARGV 'new' or 'old', the wallet's field `about`, then fields and values
local status = redis.call('HGET', KEYS[1], 'status')
if ARGV[1] == 'new' then
  if status then return 'EXISTS' end
  redis.call('HSETNX', KEYS[2], 'numbers', '0 0 0 0')
  redis.call('HSET', KEYS[2], 'about', ARGV[2])
else
  if not status then return 'UNKNOWN' end
  if status == 'closed' then return 'CLOSED' end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
if redis.call('HGET', KEYS[1], 'status') ~= 'active' then
  redis.pcall('PUBLISH', 'gw:revoked', string.match(KEYS[1], '{(.*)}'))
end
return 'OK'
