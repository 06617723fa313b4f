import { expect, it } from 'vitest'
import { parseExitStatus, isShellMissing, encodeMessage, resizeMessage, STDIN, decodeMessage } from './channel'

it('the first byte of a message is its channel', () => {
  const message = encodeMessage(STDIN, new TextEncoder().encode('ls'))
  expect([...message]).toEqual([0, 108, 115])
  expect(decodeMessage(message.buffer)).toEqual({ channel: 0, data: message.subarray(1) })
  expect(decodeMessage(new ArrayBuffer(0))).toBeUndefined()
  expect(new TextDecoder().decode(resizeMessage(80, 24))).toBe('\u0004{"Width":80,"Height":24}')
})

it.each([
  ['{"metadata":{},"status":"Success"}', { code: 0, message: '' }, false],
  ['{"status":"Failure","reason":"NonZeroExitCode","message":"command terminated","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}', { code: 3, message: 'command terminated' }, false],
  ['{"status":"Failure","message":"exec: \\"bash\\": executable file not found in $PATH"}', { code: undefined, message: 'exec: "bash": executable file not found in $PATH' }, true],
  ['{"status":"Failure","message":"x","details":{"causes":[{"reason":"ExitCode","message":"127"}]}}', { code: 127, message: 'x' }, true],
  ['no JSON', { code: undefined, message: 'no JSON' }, false],
])('%s', (status, expected, missing) => {
  expect(parseExitStatus(status)).toEqual(expected)
  expect(isShellMissing(parseExitStatus(status))).toBe(missing)
})
