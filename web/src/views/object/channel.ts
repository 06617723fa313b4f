// Kubernetes' remote command protocol over a WebSocket (v5 and v4): the first byte of a message is its channel. Has no
// side effects.

/** Supported protocols, in order of preference. */
export const PROTOCOLS = ['v5.channel.k8s.io', 'v4.channel.k8s.io']

export const STDIN = 0
export const STDOUT = 1
export const STDERR = 2
/** Channel with the result of the command as a Status. */
export const ERROR = 3
export const RESIZE = 4

export function encodeMessage(channel: number, data: Uint8Array): Uint8Array<ArrayBuffer> {
  const message = new Uint8Array(data.length + 1)
  message[0] = channel
  message.set(data, 1)
  return message
}

export function decodeMessage(message: ArrayBuffer): { channel: number; data: Uint8Array } | undefined {
  const bytes = new Uint8Array(message)
  const [channel] = bytes
  return channel === undefined ? undefined : { channel, data: bytes.subarray(1) }
}

/** A resize message. Repeating it changes nothing and serves as a keepalive. */
export function resizeMessage(columns: number, rows: number): Uint8Array<ArrayBuffer> {
  return encodeMessage(RESIZE, new TextEncoder().encode(JSON.stringify({ Width: columns, Height: rows })))
}

export interface ExitStatus {
  code: number | undefined
  message: string
}

/** Exit code and message in the Status of an ended process. */
export function parseExitStatus(status: string): ExitStatus {
  try {
    const parsed = JSON.parse(status) as { status?: string; message?: string; details?: { causes?: { reason?: string; message?: string }[] } }
    if (parsed.status === 'Success') return { code: 0, message: '' }
    const cause = parsed.details?.causes?.find(({ reason }) => reason === 'ExitCode')
    return { code: cause?.message === undefined ? undefined : Number(cause.message), message: parsed.message ?? '' }
  } catch {
    return { code: undefined, message: status }
  }
}

/** True if a shell could not be started because the image does not contain it. */
export function isShellMissing({ code, message }: ExitStatus): boolean {
  return code === 126 || code === 127 || /not found|no such file|executable file/i.test(message)
}

/** Shells in the order in which they are tried by default. */
export const SHELLS = ['bash', 'sh', 'ash', 'powershell']
