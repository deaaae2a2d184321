-- Adds a line to the audit log and removes the oldest lines, so that it has neither too many nor too many bytes.
-- KEYS[1]: the stream. KEYS[2]: its bytes, as they are counted here. ARGV: most lines, most bytes, then the fields.

local ABOUT_A_LINE = 64 -- bytes for its id and for the list that it is in

local function size_of(fields, first)
  local size = ABOUT_A_LINE
  for index = first, #fields do
    size = size + #fields[index]
  end
  return size
end

local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 3))
local bytes = redis.call('INCRBY', KEYS[2], size_of(ARGV, 3))
local lines = redis.call('XLEN', KEYS[1])
while lines > 1 and (bytes > tonumber(ARGV[2]) or lines > tonumber(ARGV[1])) do
  local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', KEYS[1], oldest[1])
  bytes = redis.call('DECRBY', KEYS[2], size_of(oldest[2], 1))
  lines = lines - 1
end
return id
