// What a view of an object shows, in the address: whoever gets it sees the same.
import { useCallback } from 'react'
import { useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'

/** Parameters of the view; undefined takes one out. */
export type Changed = Record<string, string | undefined>

/** The address' parameters, and how to change them; `step`: the reader can go back from there. */
export function useView(): [Record<string, string>, (changed: Changed, step?: boolean) => void] {
  const [, navigate] = useLocation()
  const view = readAddress(useParameters())
  const change = useCallback(
    (changed: Changed, step = false) => navigate(`/object${writeAddress({ ...readAddress(window.location.search), ...changed })}`, { replace: !step }),
    [navigate],
  )
  return [view, change]
}
