// State of an object view in the address, which reproduces it.
import { useCallback } from 'react'
import { useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'

/** Parameters of the view; undefined removes one. */
export type Changed = Record<string, string | undefined>

/** The address' parameters, and a setter; `step` adds a history entry. */
export function useView(): [Record<string, string>, (changed: Changed, step?: boolean) => void] {
  const [, navigate] = useLocation()
  const view = readAddress(useParameters())
  const change = useCallback(
    (changed: Changed, step = false) => navigate(`/object${writeAddress({ ...readAddress(window.location.search), ...changed })}`, { replace: !step }),
    [navigate],
  )
  return [view, change]
}
