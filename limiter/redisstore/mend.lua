-- mend looks at lanes and mends in them what it is told, each thing only if it is still so.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}; then per entry: ratelimit lane busy retry collapse, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock), then per entry: key, what to do, set (2 lane, 3 busy, 4 retry, 5 collapse; 0 none),
--       member, order, the member as it should be. What to do is
--       look    nothing
--       drop    remove the member from the set, unless a live lease holds it, and forget it as the newest of its name
--       twin    remove the member from the set, unless a live lease holds it and it can be read
--       order   set the member's order; it is not rewritten while a live lease holds it
--       free    move what a lease that has ended holds back into the lane
--       due     let the lane be looked at
--       fields  remove the damaged fields of ratelimit; all, if it is no hash
--       cost    note what waits as costing so much beyond one token each (order), if what is noted is that (member)
--       set     remove the set if it is not of its type
-- reply {1} the epoch is another, nothing was written; else {0, now, calls, then per entry: look {1: fields of ratelimit are
--       damaged, members of lane, busy and retry (-1: no sorted set), 1: it has an entry in due, us since its lease ended
--       (below 0: until it ends, the whole clock without one), 1: collapse is a hash}, else {1: done}}
-- Invariant: what a live lease holds stays with it; a lane in which anything was mended stays in due.
--
-- cat base.lua common.lua waiting.lua mend.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' 'collapse:{s03}:k' , ID 0 k look 0 '' 0 ''
local ok = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local NUMBERS = {'exp', 'opened', 'opening', 'openingExtra', 'extra', 'closedUntil', 'fails', 'token', 'until'}
local LEVEL, SLIDING = {'tokens', 'frac', 'den', 'updatedAt'}, {'slice', 'counts', 'den', 'updatedAt'}

-- fields answers the fields of a key's hash, with the prefixes of the limits that they are of; nil if it is no hash.
local function fields(key)
  local list = redis.pcall('HGETALL', key)
  if not typed(list) then return nil end
  local h, prefixes = {}, {}
  for i = 1, #list, 2 do
    h[list[i]] = list[i + 1]
    local prefix, name = string.match(list[i], '^(.*:)(%a+)$')
    prefix, name = prefix or '', name or list[i]
    for j = 1, 4 do
      if name == LEVEL[j] or name == SLIDING[j] then prefixes[prefix] = true end
    end
  end
  return h, prefixes
end

-- damage answers which fields are not what sluice writes, whatever limits they are of.
local function damage(h, prefixes)
  local bad = {}
  for i = 1, #NUMBERS do
    if not whole(h[NUMBERS[i]]) then bad[#bad + 1] = NUMBERS[i] end
  end
  for p in pairs(prefixes) do
    local sliding = h[p .. 'slice'] or h[p .. 'counts']
    local names, values = sliding and SLIDING or LEVEL, {}
    for j = 1, 4 do values[j] = h[p .. names[j]] end
    if not part({kind = sliding and 3 or 0}, values, 1) then
      for j = 1, 4 do bad[#bad + 1] = p .. names[j] end
    end
  end
  return bad
end

-- sound says whether a set, by its number, is what sluice writes.
local function sound(k, set)
  if set == 5 then return typed(redis.pcall('HGET', KEYS[k + 4], '')) end
  return size(KEYS[k + set - 1]) ~= nil
end

local mends = {}

function mends.twin(k, h, live, set, member)
  if set == 3 and live and tonumber(string.match(member, '^[^,]*')) then return 0 end
  if set == 3 then return redis.call('ZREM', KEYS[k + 2], member) end
  return remove(KEYS[k + set - 1], member)
end

function mends.drop(k, h, live, set, member)
  local done = mends.twin(k, h, live, set, member)
  if done > 0 then leave(newest(KEYS[k + 4], member), KEYS[k + 4], member) end
  return done
end

function mends.order(k, h, live, set, member, order, as)
  local key = KEYS[k + set - 1]
  if set == 3 and live and as ~= member or not redis.call('ZSCORE', key, member) then return 0 end
  if newest(KEYS[k + 4], member) == member then redis.call('HSET', KEYS[k + 4], name(member), as) end
  redis.call('ZREM', key, member)
  redis.call('ZADD', key, order, as)
  return 1
end

function mends.free(k, h, live)
  if live or not h or size(KEYS[k + 2]) == 0 then return 0 end
  give(KEYS[k + 2], KEYS[k + 1])
  redis.call('HDEL', KEYS[k], 'holder', 'token', 'until')
  return 1
end

function mends.due() return 1 end

function mends.cost(k, h, live, set, member, order)
  if not h or (h.extra or '0') ~= member then return 0 end
  gained = tonumber(order) - tonumber(member)
  return 1
end

function mends.fields(k, h)
  if not h then return redis.call('DEL', KEYS[k]) end
  local bad = damage(fields(KEYS[k]))
  return #bad > 0 and redis.call('HDEL', KEYS[k], unpack(bad)) or 0
end

function mends.set(k, h, live, set)
  return sound(k, set) and 0 or redis.call('DEL', KEYS[k + set - 1])
end

-- Everything else is only done in a key whose sets are what sluice writes.
local FIRST = {fields = true, set = true}
local function mendable(k, what)
  return FIRST[what] or sound(k, 2) and sound(k, 3) and sound(k, 4) and sound(k, 5)
end

local reply = {0, now, 0}
for i = 1, (#ARGV - 2) / 6 do
  local k, a = 5 * i - 2, 6 * i - 3
  local key, what = ARGV[a], ARGV[a + 1]
  local h, prefixes = fields(KEYS[k])
  local til = h and whole(h['until']) or 0
  if what == 'look' then
    local bad = not h or #damage(h, prefixes) > 0
    reply[3 + i] = {bad and 1 or 0, size(KEYS[k + 1]) or -1, size(KEYS[k + 2]) or -1, size(KEYS[k + 3]) or -1,
      redis.call('ZSCORE', KEYS[2], key) and 1 or 0, now - til, sound(k, 5) and 1 or 0}
  else
    local set, member, order, as = tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
    local done = mendable(k, what) and mends[what](k, h, til > now, set, member, order, as) or 0
    tallyUnread(KEYS[k], now)
    if done > 0 and redis.call('EXISTS', KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]) > 0 then
      redis.call('ZADD', KEYS[2], 'NX', d(now), key)
    end
    reply[3 + i] = {done}
    reply[3] = reply[3] > 0 and reply[3] or redis.call('HINCRBY', KEYS[1], 'n', '1')
  end
end
return reply
