// Tables that sort by the column whose head is pressed: first the larger values, then the smaller ones. A head's button
// has ▾ or ▴ where its column sorts.
const collator = new Intl.Collator("en", {numeric: true});

function sorted(heads, chosen, down) {
  heads.forEach((head, place) => head.setAttribute("aria-sort", place === chosen ? down ? "descending" : "ascending" : "none"));
}

// Unknown values last, both ways round.
function compared(one, other, down) {
  if (one === null || other === null) return (one === null) - (other === null);
  const order = typeof one === "number" && typeof other === "number" ? one - other : collator.compare(one, other);
  return down ? -order : order;
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const first = [...body.rows];
  let chosen = -1, down = true;
  const value = (row, place) => {
    const held = row.cells[place].dataset.v;
    return held === undefined ? row.cells[place].textContent : held === "" || held === "None" ? null : Number(held);
  };
  heads.forEach((head, place) => {
    const text = head.textContent;
    head.replaceChildren();
    presser("sort", text, head, () => {
      // A third press restores the first order.
      if (chosen !== place) [chosen, down] = [place, place > 0];
      else if (down === place > 0) down = !down;
      else chosen = -1;
      const rows = chosen < 0 ? first : [...first].sort((one, other) => compared(value(one, chosen), value(other, chosen), down));
      body.append(...rows);
      sorted(heads, chosen, down);
    });
  });
  sorted(heads, -1, down);
}
