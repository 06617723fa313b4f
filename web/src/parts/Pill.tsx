import { GLYPHS, toneOf, type Tone } from './status'

interface PillProps {
  /** A state of the table in `status.ts`. */
  state: string | undefined
  /** The text to show; default: the state. */
  text?: string | undefined
  /** Overrides the tone of the table. */
  tone?: Tone | undefined
  title?: string | undefined
}

/** A state with its glyph and tint. */
export function Pill({ state, text = state, tone = toneOf(state), title }: PillProps) {
  if (!text) return null
  return (
    <span className={`pill ${tone}`} title={title ?? text}>
      <i aria-hidden="true">{GLYPHS[tone]}</i> {text}
    </span>
  )
}
