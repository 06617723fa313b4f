import { expect, it } from 'vitest'
import type { FieldDifference } from '../../api/drift'
import { driftRows } from './driftMatrix'

const field = (path: string, live: unknown): FieldDifference => ({ path, desired: 1, live, owners: [] })

it('has a row for each field that differs anywhere, and a cell for each cluster', () => {
  const [two, three, image] = [field('spec.replicas', 2), field('spec.replicas', 3), field('spec.image', 'x')]
  expect(driftRows([[two], [], undefined, [three, image]])).toEqual([
    { path: 'spec.image', differences: [undefined, undefined, undefined, image] },
    { path: 'spec.replicas', differences: [two, undefined, undefined, three] },
  ])
})
