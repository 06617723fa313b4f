-- Replacements for library functions that take time or memory without executing instructions, where no hook is called.
-- `natives` contains `is_late`, the search functions of strings.rs, and `max_bytes`, the maximum length of a string in bytes.
local natives, string, globals = ...
local find, scan, scan_literal, is_late = natives.find, natives.scan, natives.scan_literal, natives.is_late
local max_bytes = natives.max_bytes
local error, select, type, tonumber, tostring = error, select, type, tonumber, tostring
local table, native_concat, native_sub, native_rep = globals.table, globals.table.concat, string.sub, string.rep
local late = 'context deadline exceeded'

-- Checks the time before each call.
local function timed(call)
  return function(...)
    if is_late() then error(late, 0) end
    return call(...)
  end
end

local function keep(library, names)
  local kept = {}
  for name in names:gmatch('%a+') do kept[name] = library[name] end
  for name in pairs(library) do
    if not kept[name] then library[name] = nil end
  end
  for name, call in pairs(kept) do library[name] = timed(call) end
end

-- Functions of gopher-lua, which Karmada runs scripts with.
keep(string, 'byte char find format gmatch gsub len lower match rep reverse sub upper')
keep(table, 'concat getn insert maxn remove sort')
for name in ('next tonumber tostring unpack'):gmatch('%a+') do globals[name] = timed(globals[name]) end

-- Returns results, or raises the error at the position of the caller's caller.
local function found(problem, ...)
  if problem then error(problem, problem == late and 0 or 2) end
  return ...
end

function string.find(text, pattern, init, plain)
  return found(find(text, pattern, init, 'find', plain))
end

-- Captures of a match, or the whole match if there are none.
local function captured(text, problem, first, last, ...)
  if problem then error(problem, problem == late and 0 or 2) end
  if not first then return nil end
  if select('#', ...) == 0 then return native_sub(text, first, last) end
  return ...
end

function string.match(text, pattern, init)
  return captured(text, scan(text, pattern, init, 'match'))
end

function string.gmatch(text, pattern)
  local at = 1
  local function step(problem, first, last, ...)
    if first then at = last < first and first + 1 or last + 1 end
    return captured(text, problem, first, last, ...)
  end
  -- Arguments that cannot be searched are rejected here.
  local problem = scan_literal(text, '', 1, 'gmatch') or scan_literal('', pattern, 1, 'gmatch')
  if problem then error(problem, problem == late and 0 or 2) end
  return function()
    return step(scan_literal(text, pattern, at, 'gmatch'))
  end
end

-- The replacement of a match: from a template with `%0` to `%9`, a table or a function.
local function replacement(by, whole, ...)
  local kind, value = type(by), nil
  if kind == 'string' then
    local pieces, count, at = {}, 0, 1
    while true do
      local problem, position = find(by, '%', at, 'gsub', true)
      if problem then error(problem, 0) end
      if not position then break end
      local sign = native_sub(by, position + 1, position + 1)
      local digit, piece = tonumber(sign), sign
      if digit == 0 or (digit == 1 and select('#', ...) == 0) then
        piece = whole
      elseif digit then
        if digit > select('#', ...) then error('invalid capture index', 4) end
        piece = tostring((select(digit, ...)))
      end
      pieces[count + 1], pieces[count + 2] = native_sub(by, at, position - 1), piece
      count, at = count + 2, position + 2
    end
    if at == 1 then return by end
    pieces[count + 1] = native_sub(by, at)
    return table.concat(pieces)
  elseif kind == 'table' then
    if select('#', ...) == 0 then value = by[whole] else value = by[(...)] end
  elseif select('#', ...) == 0 then
    value = by(whole)
  else
    value = by(...)
  end
  if not value then return whole end
  if type(value) ~= 'string' and type(value) ~= 'number' then
    error('invalid replacement value (a ' .. type(value) .. ')', 4)
  end
  return value
end

function string.gsub(text, pattern, by, most)
  if type(by) == 'number' then by = tostring(by) end
  local kind = type(by)
  if kind ~= 'string' and kind ~= 'table' and kind ~= 'function' then
    error("bad argument #3 to 'gsub' (string/function/table expected, got " .. (by == nil and 'no value' or kind) .. ')', 2)
  end
  if type(text) == 'number' then text = tostring(text) end
  if type(text) ~= 'string' then
    error("bad argument #1 to 'gsub' (string expected, got " .. type(text) .. ')', 2)
  end
  local limit = most == nil and 1 / 0 or tonumber(most)
  if not limit then error("bad argument #4 to 'gsub' (number expected, got " .. type(most) .. ')', 2) end
  -- A pattern with `^` is tried at the start only.
  local anchored = type(pattern) == 'string' and native_sub(pattern, 1, 1) == '^'
  local pieces, count, size, at, replaced = {}, 0, 0, 1, 0
  local function put(piece)
    count, size = count + 1, size + #tostring(piece)
    if size > max_bytes then error('resulting string too large', 0) end
    pieces[count] = piece
  end
  local function step(problem, first, last, ...)
    if problem then error(problem, problem == late and 0 or 3) end
    if not first then return false end
    put(native_sub(text, at, first - 1))
    put(replacement(by, native_sub(text, first, last), ...))
    replaced, at = replaced + 1, last + 1
    if last < first then
      put(native_sub(text, first, first))
      at = first + 1
    end
    return at <= #text + 1 and not anchored
  end
  while replaced < limit and step(scan(text, pattern, at, 'gsub')) do end
  put(native_sub(text, at))
  return native_concat(pieces), replaced
end

function string.rep(text, times, ...)
  if type(text) == 'string' and (tonumber(times) or 0) > 0 and #text * tonumber(times) > max_bytes then
    error('resulting string too large', 2)
  end
  return native_rep(text, times, ...)
end

local native_format = string.format
function string.format(...)
  local size = 0
  for index = 1, select('#', ...) do
    local value = select(index, ...)
    if type(value) == 'string' then size = size + #value end
  end
  if size > max_bytes then error('resulting string too large', 2) end
  return native_format(...)
end

function table.concat(list, between, first, last)
  if type(list) == 'table' then
    local size, gap = 0, type(between) == 'string' and #between or 0
    for index = tonumber(first) or 1, tonumber(last) or #list do
      local value = list[index]
      if value == nil then break end
      size = size + gap + (type(value) == 'string' and #value or 0)
      if size > max_bytes then error('resulting string too large', 2) end
    end
  end
  return native_concat(list, between, first, last)
end

-- A merge sort: its instructions are counted, and no comparison function makes it quadratic.
local function merge(from, to, low, middle, high, before)
  local left, right = low, middle + 1
  for position = low, high do
    if left > middle or (right <= high and before(from[right], from[left])) then
      to[position], right = from[right], right + 1
    else
      to[position], left = from[left], left + 1
    end
  end
end

local native_sort = table.sort
function table.sort(list, before)
  if type(list) ~= 'table' or (before ~= nil and type(before) ~= 'function') then return native_sort(list, before) end
  before = before or function(left, right) return left < right end
  local count, width, from, to = #list, 1, list, {}
  while width < count do
    for low = 1, count, 2 * width do
      local middle, high = low + width - 1, low + 2 * width - 1
      if middle > count then middle = count end
      if high > count then high = count end
      merge(from, to, low, middle, high, before)
    end
    from, to, width = to, from, 2 * width
  end
  if from ~= list then
    for position = 1, count do list[position] = from[position] end
  end
end
