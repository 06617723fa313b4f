import { Modal } from '../parts/Modal'
import { Query } from '../parts/Query'
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
      <button type="button" autoFocus onClick={onClose}>
        {t.close}
      </button>
    </Modal>
  )
}
