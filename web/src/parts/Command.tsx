import { useTextOf } from '../text'
import { fleetText } from '../text/fleet'
import { ActionButton } from './ActionButton'
import { useCopied } from './flash'
import './panels.css'

/** A command or file with a button that copies it. */
export function Command({ text }: { text: string }) {
  const t = useTextOf(fleetText)
  const [copied, copy] = useCopied()
  return (
    <div className="command">
      <pre tabIndex={0} aria-label={text.split('\n')[0]}>
        {text}
      </pre>
      <ActionButton
        disabledReason={navigator.clipboard === undefined ? t.noClipboard : undefined}
        onClick={() => void copy(text)}
      >
        {copied !== undefined ? t.copied : t.copy}
      </ActionButton>
    </div>
  )
}
