// The state of an object in its header: a pill, and the reason if something is wrong. Pure.
import { isKind } from '../../api/client'
import type { Hit, KubeObject } from '../../api/types'
import { toneOf, toneOfReady, type Tone } from '../../parts/status'
import { conditions } from './facts'

export interface Headline {
  state: string
  tone: Tone
  /** Reason and message of the condition that is not as it should be. */
  why?: string
}

/** `hit`: the object in the index, which has the state that kubectl prints. */
export function headline(object: KubeObject, hit: Pick<Hit, 'status' | 'ready'> | undefined): Headline | undefined {
  const state = stateOf(object, hit)
  if (!state) return undefined
  if (state.tone === 'good' && isKind(object, '', 'Pod')) return state
  const wrong = conditions(object).find(({ good }) => good === false)
  const why = wrong && [wrong.reason || wrong.type, wrong.message].filter(Boolean).join(': ')
  return why ? { ...state, why } : state
}

function stateOf({ metadata, status }: KubeObject, hit: Pick<Hit, 'status' | 'ready'> | undefined): Headline | undefined {
  if (metadata.deletionTimestamp) return { state: 'Terminating', tone: toneOf('Terminating') }
  const { phase } = (status ?? {}) as { phase?: unknown }
  const state = hit?.status || (typeof phase === 'string' ? phase : '')
  if (state) return { state, tone: toneOf(state) }
  return hit?.ready ? { state: hit.ready, tone: toneOfReady(hit.ready) } : undefined
}
