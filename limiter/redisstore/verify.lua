-- verify looks whether stored events have their place in the index, gives one to those that haven't if asked, and notes
-- how far the lane stream is verified.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}; then per event: ratelimit lane busy retry, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 token of the lease of the shard, see epoch.lua ('': none is needed, since how far
--       the shard is verified isn't noted)  4 1: it is given up with this call, 0: it goes on
--       5 sequence up to which all events of the shard are verified after this call ('': as before)
--       6 add (1: events without a place get one, and whoever calls has looked into a retry with many, 0: they are only told)
--       then per event: key, sequence, member, order, tier (of an
--       event whose key has none)
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, 1: the lease is another's, or was
--       forgotten, and nothing was done (0: done), then the place in the call, from 1, of
--       each event that had no place in the index; below 0, unless events are added: it is neither in lane nor busy, and more are in
--       retry than a call may read}
-- A settled event's body is deleted before its place. So an event that has no place, and whose body is there after that was
-- seen, has lost its place; one that is given a place after its body went is found gone by the next lease, which settles it.
-- Invariant: an event that has a place keeps it and gets no other; one of a key whose sets can't be read is left to whoever
--       mends them.
--
-- cat base.lua common.lua waiting.lua verify.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 '' 0 -1 1 k 7 7 7 ''
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local token, ends, upTo, add = ARGV[3], ARGV[4] == '1', ARGV[5], ARGV[6] == '1'
if token ~= '' and redis.call('HGET', KEYS[1], 'token') ~= token then return {0, now, 0, 1} end

-- retries answers the sequences of a key's retry, read once in a call; nil if it is no sorted set, false if there are more than a
-- call may still read.
local read, most = {}, 4096
local function retries(retry)
  local set = read[retry]
  if set == nil then
    local n = size(retry)
    if not n then return nil end
    set = n <= most and {}
    if set then
      most = most - n
      local members = redis.call('ZRANGE', retry, '0', '-1')
      for i = 1, #members do set[stored(members[i]) or ''] = true end
    end
    read[retry] = set
  end
  return set
end

local last = {} -- of each set: the score that was asked for last, and the sequences that were there

-- waits says whether an event is in a set whose score is its place in the source; nil if it is no sorted set. Many may have one
-- rounded score.
local function waits(set, seq, order)
  local score, at = tonumber(order), last[set]
  if not at or at.score ~= score then
    local members = redis.pcall('ZRANGEBYSCORE', set, order, order)
    if not typed(members) then return nil end
    at = {score = score}
    for i = 1, #members do at[stored(members[i]) or ''] = true end
    last[set] = at
  end
  return at[seq] or false
end

-- placed says whether an event is in one of the sets of its key; nil if that has to be looked for in retry. What can't be read
-- may hold it.
local function placed(lane, busy, retry, seq, order)
  if waits(lane, seq, order) ~= false or waits(busy, seq, order) ~= false then return true end
  local there = retries(retry)
  if there == false then return nil end
  return not there or there[seq] or false
end

local reply = {0, now, redis.call('HINCRBY', KEYS[1], 'n', '1'), 0}
for i = 0, (#KEYS - 2) / 4 - 1 do
  local a = 7 + 5 * i
  local key, seq, member, order = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local lane, busy, retry = KEYS[4 * i + 4], KEYS[4 * i + 5], KEYS[4 * i + 6]
  local has = placed(lane, busy, retry, seq, order)
  if not has then
    reply[#reply + 1] = (has == false or add) and i + 1 or -i - 1
    if add then
      insert(lane, order, member)
      last[lane] = nil
      tallyUnread(KEYS[4 * i + 3], now)
      redis.call('ZADD', KEYS[2], 'LT', d(now), key)
      if ARGV[a + 4] ~= '' and (redis.pcall('HGET', KEYS[4 * i + 3], 'class') or '') == '' then
        remember(KEYS[4 * i + 3], ARGV[a + 4], now)
      end
    end
  end
end

if upTo ~= '' then redis.call('HSET', KEYS[1], 'verified', upTo) end
if ends then redis.call('HDEL', KEYS[1], 'token', 'holder', 'until') end
return reply
