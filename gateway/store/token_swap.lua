-- Replaces a token's record if it is unchanged since it was read, so no change is lost and no deleted token comes back.
-- KEYS[1] gw:{account}:tokens
-- ARGV: token id, record as read ('' for none), new record ('' deletes), and where the token may no longer be used, its account
local kept = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if kept ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
-- pcall: where the store's user may not publish, the gateways find out when they check what is open.
if ARGV[4] then redis.pcall('PUBLISH', 'gw:revoked', ARGV[4]) end
return 1
