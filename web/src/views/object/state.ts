// State of the object page, which is stored in the parameters of its address.
import { useCallback } from 'react'
import { useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'

/** Parameters to change; undefined removes one. */
export type ViewParameters = Record<string, string | undefined>

/** The parameters of the address, and a function that changes them; with `step` it adds a history entry. */
export function useViewParameters(): [Record<string, string>, (changed: ViewParameters, step?: boolean) => void] {
  const [, navigate] = useLocation()
  const view = readAddress(useParameters())
  const change = useCallback(
    (changed: ViewParameters, step = false) => navigate(`/object${writeAddress({ ...readAddress(window.location.search), ...changed })}`, { replace: !step }),
    [navigate],
  )
  return [view, change]
}
