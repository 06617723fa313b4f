import { Code } from './Code'
import { print } from './yaml'

/** An object that came as JSON, as YAML. */
export function Printed({ value, label }: { value: unknown; label: string }) {
  return <Code text={print(value)} label={label} />
}
