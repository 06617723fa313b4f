// Commands of the shown page, which the palette offers first.
import { useEffect } from 'react'

export interface PageCommand {
  text: string
  /** The object that the command is about. */
  about: string
  href: string
}

const lists = new Set<readonly PageCommand[]>()

/** All commands of the shown page. */
export const pageCommands = (): PageCommand[] => [...lists].flat()

/** Adds commands and returns a function that removes them. */
export function addPageCommands(commands: readonly PageCommand[]): () => void {
  lists.add(commands)
  return () => void lists.delete(commands)
}

/** Offers commands in the palette while the calling component is shown. */
export function usePageCommands(commands: readonly PageCommand[]): void {
  useEffect(() => addPageCommands(commands))
}
