import { Modal } from '../parts/Modal'
import { Query } from '../parts/Query'
import { CHANGEABLE_KEYS } from '../parts/keys'
import { setPrefs, usePrefs } from '../prefs'
import { useText } from '../text'

/** Shortcut keys, and a summary of the query language. */
export function Keys({ onClose }: { onClose: () => void }) {
  const t = useText()
  return (
    <Modal label={t.keysTitle} className="keys" onClose={onClose}>
      <h2>{t.keysTitle}</h2>
      <dl>
        {t.keyTable.map(([keys, does]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <dl>
        {t.languageTable.map(([query, means]) => (
          <div key={query}>
            <dt>
              <Query text={query} />
            </dt>
            <dd>{means}</dd>
          </div>
        ))}
      </dl>
      <details>
        <summary>{t.changeKeys}</summary>
        <KeyChooser />
      </details>
      <button type="button" autoFocus onClick={onClose}>
        {t.close}
      </button>
    </Modal>
  )
}

/** Fields for the user's shortcut keys; an empty one has the default key. */
function KeyChooser() {
  const t = useText()
  const { keys } = usePrefs()
  const choose = (key: string, chosen: string) => {
    const { [key]: _before, ...others } = keys
    setPrefs({ keys: chosen === '' || chosen === key ? others : { ...others, [key]: chosen } })
  }
  return (
    <>
      <ul className="plain">
        {CHANGEABLE_KEYS.map((key) => (
          <li key={key}>
            <label>
              <input type="text" size={2} maxLength={1} autoComplete="off" spellCheck={false} placeholder={key} value={keys[key] ?? ''} onChange={(event) => choose(key, event.target.value.trim())} /> {t.keyNames[key]}
            </label>
          </li>
        ))}
      </ul>
      <button type="button" onClick={() => setPrefs({ keys: {} })}>
        {t.resetColumns}
      </button>
    </>
  )
}
