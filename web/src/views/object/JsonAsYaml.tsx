import { Editor } from '../../parts/Editor'
import { printYaml } from '../../parts/yaml'

/** The remaining height of the window. */
export const EDITOR_HEIGHT = 'calc(100vh - 300px)'

/** A JSON object, shown as YAML. */
export function JsonAsYaml({ value, label }: { value: unknown; label: string }) {
  return <Editor value={printYaml(value)} label={label} height={EDITOR_HEIGHT} />
}
