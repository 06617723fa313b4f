import { iconOfKind, type OtherIcon } from './kinds'
import sprite from './sprite.svg'

/** An icon of the sprite in the colour of the text. It is hidden from screen readers, because its name is next to it. */
export function Icon({ name }: { name: OtherIcon }) {
  return <SpriteIcon name={name} />
}

/** The icon of a kind in the group of `apiVersion`. */
export function KindIcon({ kind, apiVersion }: { kind: string; apiVersion: string }) {
  return <SpriteIcon name={iconOfKind(kind, apiVersion)} />
}

function SpriteIcon({ name }: { name: string }) {
  return (
    <svg className="icon" aria-hidden="true" viewBox="0 0 16 16">
      <use href={`${sprite}#${name}`} />
    </svg>
  )
}
