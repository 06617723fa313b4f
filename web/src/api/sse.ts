// Server-sent events over fetch: EventSource cannot set the client header and reports no error details.
import { request, toUnreachableError } from './client'

export interface ServerEvent {
  event: string
  data: string
}

/** Takes chunks of text and returns complete events; a partial event is kept for the next chunk. */
export class EventParser {
  private rest = ''

  push(chunk: string): ServerEvent[] {
    this.rest += chunk
    const blocks = this.rest.split(/\r?\n\r?\n/)
    this.rest = blocks.pop() ?? ''
    return blocks.map(parseBlock).filter((event) => event !== undefined)
  }
}

function parseBlock(block: string): ServerEvent | undefined {
  let event = 'message'
  const data: string[] = []
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith('event:')) event = line.slice(6).trim()
    if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''))
  }
  return data.length === 0 ? undefined : { event, data: data.join('\n') }
}

/** Requests a stream of events and passes each to `onEvent`. Returns when the server ends the stream. */
export async function streamEvents(path: string, signal: AbortSignal, onEvent: (event: ServerEvent) => void): Promise<void> {
  const response = await request(path, { headers: { Accept: 'text/event-stream' }, signal })
  const parser = new EventParser()
  await readText(response, (chunk) => parser.push(chunk).forEach(onEvent))
}

/** Reads the body as text and passes each chunk to `onChunk` as it arrives. */
export async function readText(response: Response, onChunk: (chunk: string) => void): Promise<void> {
  if (!response.body) return
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  for (;;) {
    const { done, value } = await reader.read().catch((error: unknown) => {
      throw toUnreachableError(error)
    })
    if (done) return
    onChunk(value)
  }
}
