import { Editor } from '../../parts/Editor'
import { print } from '../../parts/yaml'

/** As much of the window as what is above leaves. */
export const TALL = 'calc(100vh - 300px)'

/** An object that came as JSON, as YAML. */
export function Printed({ value, label }: { value: unknown; label: string }) {
  return <Editor value={print(value)} label={label} height={TALL} />
}
