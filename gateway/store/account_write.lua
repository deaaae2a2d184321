-- Writes fields of a new or an existing account atomically; a new one gets a balance of zero.
-- KEYS gw:{account}:account, gw:{account}:wallet, gw:{account}:made
-- ARGV 'new' or 'old', the wallet's field `about`, the key of a creation or the mark that an existing one must still have ('' for
-- none), how long a key is kept in seconds, then fields and values
local status = redis.call('HGET', KEYS[1], 'status')
if ARGV[1] == 'new' then
  if status then return ARGV[3] ~= '' and redis.call('GET', KEYS[3]) == ARGV[3] and 'MADE' or 'EXISTS' end
  redis.call('HSETNX', KEYS[2], 'numbers', '0 0 0 0')
  redis.call('HSET', KEYS[2], 'about', ARGV[2])
  if ARGV[3] ~= '' then redis.call('SET', KEYS[3], ARGV[3], 'EX', ARGV[4]) end
else
  if not status then return 'UNKNOWN' end
  if status == 'closed' then return 'CLOSED' end
  local mark = redis.call('HMGET', KEYS[1], 'limits', 'budgets')
  if ARGV[3] ~= '' and (mark[1] or '') .. (mark[2] or '') ~= ARGV[3] then return 'CHANGED' end
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
return 'OK'
