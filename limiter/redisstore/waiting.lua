-- Put behind common.lua before the scripts that move events of lanes.

-- readable says whether a member, or its order, is what sluice writes; how a name is written only its reader can tell.
local function readable(member, order)
  order = whole(order or '0')
  if not order or order < 0 then return false end
  local n = 0
  for field in string.gmatch(member .. ',', '([^,]*),') do
    n = n + 1
    if n < 7 and not (string.find(field, '^%d+$') and whole(field)) then return false end
  end
  return true
end

-- give moves everything leased back into the lane.
local function give(busy, lane)
  local b = redis.call('ZRANGE', busy, '0', '-1', 'WITHSCORES')
  for i = 1, #b, 2 do redis.call('ZADD', lane, b[i + 1], b[i]) end
  if #b > 0 then redis.call('DEL', busy) end
end

-- free ends the lease of s.
local function free(s)
  if s.token ~= 0 or s.til ~= 0 then
    redis.call('HDEL', s.key, 'holder', 'token', 'until')
    s.token, s.til = 0, 0
  end
end

-- sleep closes the key because its receiver is away.
local function sleep(s, now, us)
  s.closedUntil, s.fails = max(s.closedUntil, now + us), s.fails + 1
  put(s, 'closedUntil', d(s.closedUntil))
  put(s, 'fails', d(s.fails))
end

-- place answers a full member's place in the source.
local function place(member) return tonumber(string.match(member, '^%d+,%d+,%d+,%d+,(%d+)') or '0') end

-- name answers what a member collapses under, nil for nothing and for one that is to be dropped.
local function name(member) return string.match(member, '^%d+,%d+,%d+,%d+,%d+,%d+,([^!].*)$') end

-- over answers a named member as one that is to be dropped.
local function over(member) return (string.gsub(member, ',([^,]+)$', ',!%1')) end

-- superseded says whether a newer event of a member's name is there.
local function superseded(collapse, member)
  local n = name(member)
  local newest = n and redis.call('HGET', collapse, n)
  return newest and place(newest) > place(member)
end

-- enter puts an event into its lane, or with its own due time into retry. Of those of one name only the newest waits: an older
-- one, be it this one or the one before, goes to retry, to be dropped. It answers that one, if there is any.
local function enter(collapse, lane, retry, member, order, due)
  local n, dropped = name(member), nil
  if n then
    local last = redis.call('HGET', collapse, n)
    if last and place(last) > place(member) then
      dropped = over(member)
      redis.call('ZADD', retry, '0', dropped)
      return dropped
    end
    if last and place(last) < place(member) and redis.call('ZREM', lane, last) + redis.call('ZREM', retry, last) > 0 then
      dropped = over(last)
      redis.call('ZADD', retry, '0', dropped)
    end
    redis.call('HSET', collapse, n, member)
  end
  if due > 0 then redis.call('ZADD', retry, d(due), member) else redis.call('ZADD', lane, order, member) end
  return dropped
end

-- leave forgets a settled event as the newest of its name.
local function leave(collapse, member)
  local n = name(member)
  local last = n and redis.call('HGET', collapse, n)
  if last and place(last) == place(member) then redis.call('HDEL', collapse, n) end
end
