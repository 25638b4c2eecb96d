-- holds says whether events have a place in the index, by where they stand in the source. It changes nothing.
--
-- KEYS  1 epoch:{tag}; then per event: lane busy retry, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock), then per event: order
-- reply {1} the epoch is another; else {0, now, 0, then per event: 0 (it has none) or 1 (it has, or may have: a set is no sorted
--       set, or more are in retry than a call may read)}
-- Invariant: an event that has a place is never said to have none.
--
-- cat base.lua common.lua waiting.lua holds.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 7
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local reply, most = {0, clock(tonumber(ARGV[2])), 0}, 4096

-- among says whether an event is in a set whose score is its place in the source; nil if it is no sorted set.
local function among(set, order)
  local members = redis.pcall('ZRANGEBYSCORE', set, order, order)
  if not typed(members) then return nil end
  for i = 1, #members do
    if stands(members[i], order) == order then return true end
  end
  return false
end

-- again says whether an event waits for another attempt; nil if it can't tell.
local function again(retry, order)
  local n = size(retry)
  if not n or n > most then return nil end
  most = most - n
  local members = redis.call('ZRANGE', retry, '0', '-1')
  for i = 1, #members do
    if place(members[i]) == order then return true end
  end
  return false
end

for i = 2, #KEYS, 3 do
  local order = ARGV[3 + (i - 2) / 3]
  local none = among(KEYS[i], order) == false and among(KEYS[i + 1], order) == false and again(KEYS[i + 2], order) == false
  reply[#reply + 1] = none and 0 or 1
end
return reply
