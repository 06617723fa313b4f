// Instructions to connect an assistant that uses the Model Context Protocol. See docs/MCP.md.
import { Command } from '../../parts/Command'
import { useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'

const file = (value: object) => JSON.stringify(value, null, 2)
const LOCAL = { command: 'crowsnest', args: ['mcp'] }

export function Assistants() {
  const t = useTextOf(analysisText)
  const http = { type: 'http', url: `${window.location.origin}/mcp`, headers: { Authorization: 'Bearer TOKEN' } }
  return (
    <>
      <h1>{t.assistantsTitle}</h1>
      <p className="notice">{t.assistantsHint}</p>
      <h2>{t.byCommand}</h2>
      <Command text="claude mcp add crowsnest -- crowsnest mcp" />
      <h2>{t.byFile}</h2>
      <Command text={file({ mcpServers: { crowsnest: LOCAL } })} />
      <h2>{t.byVsCode}</h2>
      <Command text={file({ servers: { crowsnest: { type: 'stdio', ...LOCAL } } })} />
      <h2>{t.byHttp}</h2>
      <Command text={file({ mcpServers: { crowsnest: http } })} />
    </>
  )
}
