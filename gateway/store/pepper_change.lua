-- Records another pepper where nothing else has recorded one meanwhile.
-- KEYS the record   ARGV its fingerprint before ('' for none), the one after, host, time, fingerprint of the accepted old one, its end
local present = redis.call('HGET', KEYS[1], 'fingerprint') or ''
if present ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'fingerprint', ARGV[2], 'host', ARGV[3], 'since', ARGV[4], 'old', ARGV[5], 'until', ARGV[6])
return 1
