-- Converts an account's data from layout 1 to layout 2, whole or not at all. Returns 0 if that was done before.
-- In layout 1 the account's hash had balance, held and holds, requests were in three keys, and their ends had times of their own.
-- KEYS gw:{account}:account, :wallet, :holds, :leases, :ended, :ended_at, :ledger   ARGV what `balance` of the account says from now on
local account, wallet, holds, leases, ended, ended_at, ledger = unpack(KEYS)
local balance, held, count, archived = unpack(redis.call('HMGET', account, 'balance', 'held', 'holds', 'archived'))
if not balance or balance == ARGV[1] then return 0 end
for _, number in ipairs({ balance, held or '', count or '' }) do
  if not number:find('^%-?%d+$') then return redis.error_reply('ERR a number of the account is not readable') end
end
if redis.call('EXISTS', wallet) == 1 then return redis.error_reply('ERR the account has data of both layouts') end

local first_lease = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2] or 0
local first_end = redis.call('ZRANGE', ended_at, 0, 0, 'WITHSCORES')[2]
local last = redis.call('XREVRANGE', ledger, '+', '-', 'COUNT', 1)[1]
-- The ends before this line of the ledger were deleted. A line is not older than its end.
local trimmed = first_end and string.format('%d-0', math.max(0, first_end - 1)) or last and last[1] or '0-0'
local held_now = redis.call('HGETALL', holds)

if redis.call('EXISTS', ended) == 1 then redis.call('RENAME', ended, wallet) end
redis.call('HSET', wallet, 'numbers', string.format('%s %s %s %d', balance, held, count, first_lease), 'trimmed', trimmed,
  'about', ARGV[2])
if archived then redis.call('HSET', wallet, 'archived', archived) end
for first = 1, #held_now, 1000 do
  redis.call('HSET', wallet, unpack(held_now, first, math.min(first + 999, #held_now)))
end
redis.call('UNLINK', holds, ended_at)
redis.call('HSET', account, 'balance', ARGV[1])
redis.call('HDEL', account, 'held', 'holds', 'archived')
return 1
