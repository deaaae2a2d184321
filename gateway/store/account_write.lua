-- Writes fields of a new or an existing account atomically; a new one gets a balance of zero.
-- KEYS gw:{account}:account, gw:{account}:wallet   ARGV[1] 'new' or 'old', then fields and values
local status = redis.call('HGET', KEYS[1], 'status')
if ARGV[1] == 'new' then
  if status then return 'EXISTS' end
  redis.call('HSETNX', KEYS[2], 'numbers', '0 0 0 0')
  -- A value of more than 64 bytes makes the server use a hash table from the start: in its list for small hashes, each call
  -- would search all requests.
  redis.call('HSET', KEYS[2], 'about', 'numbers: balance, held, holds, no lease ends before; then requests by id')
else
  if not status then return 'UNKNOWN' end
  if status == 'closed' then return 'CLOSED' end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 'OK'
