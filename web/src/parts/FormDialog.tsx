import type { ReactNode } from 'react'
import { useText } from '../text'
import { Modal } from './Modal'

interface FormDialogProps {
  title: string
  className?: string
  /** Class of the row of buttons. */
  buttonsClassName?: string
  submitButton: ReactNode
  onSubmit: (form: HTMLFormElement) => void
  onClose: () => void
  children: ReactNode
}

/** A modal dialog with a form: its title, the fields, and a row with the submit button and a button that closes the dialog. */
export function FormDialog({ title, className, buttonsClassName, submitButton, onSubmit, onClose, children }: FormDialogProps) {
  const t = useText()
  return (
    <Modal label={title} onClose={onClose}>
      <form
        className={className}
        onSubmit={(event) => {
          event.preventDefault()
          onSubmit(event.currentTarget)
        }}
      >
        <h2>{title}</h2>
        {children}
        <p className={buttonsClassName}>
          {submitButton}{' '}
          <button type="button" onClick={onClose}>
            {t.cancel}
          </button>
        </p>
      </form>
    </Modal>
  )
}
