import { expect, it } from 'vitest'
import { excluded } from './facets'

it('a short name and its kind are one facet value', () => {
  expect(excluded('-kind:deploy', 'kind', [{ value: 'Deployment', count: 3 }])).toEqual([])
  expect(excluded('-kind:deploy', 'kind', [{ value: 'Pod', count: 3 }])).toEqual([{ value: 'deploy', count: 0 }])
  expect(excluded('kind:deploy', 'kind', [])).toEqual([])
})
