import { expect, it } from 'vitest'
import { withoutManagedFields } from './manifest'

it('drops only managedFields, in any list style', () => {
  for (const dash of ['  - ', '    - ']) {
    const text = `kind: Pod\nmetadata:\n  managedFields:\n${dash}manager: a\n${dash.replace('-', ' ')}time: t\n  name: x\nspec:\n  managedFields: kept\n`
    expect(withoutManagedFields(text)).toBe('kind: Pod\nmetadata:\n  name: x\nspec:\n  managedFields: kept\n')
  }
})
