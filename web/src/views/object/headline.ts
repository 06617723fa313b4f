// The state of an object in its header: a pill, and the reason if something is wrong. Has no side effects.
import { isKind } from '../../api/client'
import type { Hit, KubeObject } from '../../api/types'
import { toneOf, toneOfReady, type Tone } from '../../parts/status'
import { conditions } from './facts'

export interface Headline {
  state: string
  tone: Tone
  /** Reason and message of the failing condition. */
  reason?: string
}

/** State of an object. `hit` is the object in the index, which has the state that kubectl prints. */
export function headlineOf(object: KubeObject, hit: Pick<Hit, 'status' | 'ready'> | undefined): Headline | undefined {
  const state = stateOf(object, hit)
  if (!state) return undefined
  if (state.tone === 'good' && isKind(object, '', 'Pod')) return state
  const failing = conditions(object).find(({ good }) => good === false)
  const reason = failing && [failing.reason || failing.type, failing.message].filter(Boolean).join(': ')
  return reason ? { ...state, reason } : state
}

function stateOf({ metadata, status }: KubeObject, hit: Pick<Hit, 'status' | 'ready'> | undefined): Headline | undefined {
  if (metadata.deletionTimestamp) return { state: 'Terminating', tone: toneOf('Terminating') }
  const { phase } = (status ?? {}) as { phase?: unknown }
  const state = hit?.status || (typeof phase === 'string' ? phase : '')
  if (state) return { state, tone: toneOf(state) }
  return hit?.ready ? { state: hit.ready, tone: toneOfReady(hit.ready) } : undefined
}
