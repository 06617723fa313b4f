import { iconOfKind, type OtherIcon } from './kinds'
import sprite from './sprite.svg'

/** An icon of the sprite in the colour of the text; decorative, because the name is next to it. */
export function Icon({ name }: { name: OtherIcon }) {
  return <Drawn name={name} />
}

/** The icon of a kind. */
export function KindIcon({ kind }: { kind: string }) {
  return <Drawn name={iconOfKind(kind)} />
}

function Drawn({ name }: { name: string }) {
  return (
    <svg className="icon" aria-hidden="true" viewBox="0 0 16 16">
      <use href={`${sprite}#${name}`} />
    </svg>
  )
}
