-- explain tells how a key stands: what its limits would pay, what waits, and what holds it up.
--
-- KEYS  1 epoch:{tag}  2 due:{tag}  3 ratelimit  4 lane  5 busy  6 retry, each :{tag}:<key>
-- ARGV  1 epoch id  2 now in us (0: Redis' clock)  3 the rules (see base.lua), then key, its rule, the class by which that was
--       found
-- reply {1} the epoch is another; else {0, now, 0, code (0 told, 4 the lane is of another class, which stands in the next
--       place, -1 damaged), class, anything is known (0, 1), events waiting, those of them with their own due time, events leased,
--       on their way into the lane, us until one more event could go by the limits (-1: never), us since tokens were
--       taken (-1: not known), the first event in the source's order ('': none) and its order, us until the first of those with
--       their own due time is due, us until the lane is looked at (-1: it is due), us for which it is due and was not looked at
--       (-1: it isn't), us until the receiver is back (0: it isn't away), failures in a row, what the last one was, holder of
--       the lease ('': nobody), us for which that is good, then per limit: whole tokens, us until it could pay for the next
--       event}
-- Of the events with their own due time the thousand due first are looked at for the first in the source's order.
-- Invariant: nothing is written.
--
-- cat base.lua common.lua waiting.lua explain.lua > /tmp/s.lua; redis-cli --eval /tmp/s.lua 'epoch:{s03}' 'due:{s03}' 'ratelimit:{s03}:k' 'lane:{s03}:k' 'busy:{s03}:k' 'retry:{s03}:k' , ID 0 1000000 60000000 1 0 1 '' 0 1 100000 20 -1 k 1 ''
local ok, since = epoch(KEYS[1], ARGV[1])
if not ok then return {1} end
local now = clock(tonumber(ARGV[2]))
local all, a = rules()
local key, L, class = ARGV[a], all[ARGV[a + 1]], ARGV[a + 2]
local lane, busy, retry = KEYS[4], KEYS[5], KEYS[6]
local s = load(L, KEYS[3])
local sizes, sound = {}, s ~= nil
for i = 4, 6 do
  sizes[i] = size(KEYS[i])
  sound = sound and sizes[i] ~= nil
end
if not sound then return {0, now, 0, -1, ''} end
local waiting = sizes[4] + sizes[6]
if waiting + sizes[5] > 0 and s.class ~= class then return {0, now, 0, 4, s.class} end

-- first answers the event that is the first in the source's order, with that order.
local function first()
  local member, order
  local function see(m, o)
    if m and (not order or after(order, o)) then member, order = m, o end
  end
  for _, set in ipairs({lane, busy}) do
    local head = redis.call('ZRANGE', set, '0', '0', 'WITHSCORES')
    if head[1] then see(head[1], stands(head[1], head[2])) end
  end
  local own = redis.call('ZRANGE', retry, '0', '999')
  for i = 1, #own do see(own[i], place(own[i])) end
  return member or '', order or '0'
end

-- taken answers how long ago tokens were taken. Windows don't say.
local function taken()
  local at = 0
  for i = 1, #L do
    if L[i].kind ~= 1 and s[i].hd > 0 then at = max(at, min(now, s[i].at)) end
  end
  return at > 0 and now - at or -1
end

local ago = taken()
refill(s, L, now, since)
local member, order = first()
local back = redis.call('ZRANGE', retry, '0', '0', 'WITHSCORES')
local due = tonumber(redis.call('ZSCORE', KEYS[2], key) or '')
local price = cost(member)
local holder = s.til > now and redis.call('HGET', KEYS[3], 'holder') or ''
local reply = {0, now, 0, 0, s.class, redis.call('EXISTS', KEYS[3], lane, busy, retry) > 0 and 1 or 0, waiting, sizes[6], sizes[5],
  s.opened > now and s.opening or 0, L.mode == 1 and -1 or wait(s, L, now, price), ago, member, order,
  back[1] and max(0, tonumber(back[2]) - now) or 0, due and due > now and due - now or -1, due and due <= now and now - due or -1,
  max(0, s.closedUntil - now), s.fails, s.failure or '', holder, max(0, s.til - now)}
for i = 1, #L do
  reply[#reply + 1] = left(L[i], s[i], now)
  reply[#reply + 1] = ready(L[i], s[i], now, min(price, L[i].burst)) - now
end
return reply
