-- Replaces a token's record if it is unchanged since it was read, so no change is lost and no deleted token comes back.
-- KEYS gw:{account}:tokens, and where it is deleted gw:{account}:wallet, which has the sums of its budgets
-- ARGV: token id, record as read ('' for none), new record ('' deletes); where it is deleted, its account, and the id of the token
-- under which its budgets count: their sums go with the last token that counts there
local kept = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if kept ~= ARGV[2] then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  local counted = redis.call('HEXISTS', KEYS[1], ARGV[5]) == 1
  local link = '"counts_as":"' .. ARGV[4] .. '-' .. ARGV[5] .. '"'
  for _, record in ipairs(redis.call('HVALS', KEYS[1])) do counted = counted or record:find(link, 1, true) end
  if not counted then
    for kind in string.gmatch('DWMTR', '.') do redis.call('HDEL', KEYS[2], kind .. ARGV[5]) end
  end
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 1
