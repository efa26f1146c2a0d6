(* Symmetric bilinear forms over a real field: what "positive", "norm" and "energy" mean in the other files. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* Any symmetric nonnegative bilinear form B on any vector space. *)
Section Bilinear.
Variables (R : realFieldType) (V : lmodType R) (B : V -> V -> R).
Hypothesis symmetry : forall x y, B x y = B y x.
Hypothesis linearity : forall c x y z, B (x + c *: y) z = B x z + c * B y z.
Hypothesis nonnegative : forall x, 0 <= B x x.

Lemma bilinear_square x y c : B (x + c *: y) (x + c *: y) = B x x + 2%:R * c * B x y + c ^+ 2 * B y y.
Proof.
rewrite linearity (symmetry x) (symmetry y (x + _)) !linearity (symmetry y x); ring.
Qed.

Lemma bilinear_cauchy_schwarz x y : B x y ^+ 2 <= B x x * B y y.
Proof.
have q c := bilinear_square x y c.
have [c0 | c0] := eqVneq (B y y) 0; last first.
  have cpos : 0 < B y y by rewrite lt_def c0 nonnegative.
  have := nonnegative (x + (- (B x y / B y y)) *: y); rewrite q => h.
  have e : B x x + 2%:R * - (B x y / B y y) * B x y + (- (B x y / B y y)) ^+ 2 * B y y
           = (B x x * B y y - B x y ^+ 2) / B y y by field.
  by move: h; rewrite e pmulr_lge0 ?invr_gt0 // subr_ge0.
rewrite c0 mulr0; have [-> | b0] := eqVneq (B x y) 0; first by rewrite expr0n.
have := nonnegative (x + (- ((B x x + 1) / (2%:R * B x y))) *: y); rewrite q c0 mulr0 addr0.
have -> : B x x + 2%:R * - ((B x x + 1) / (2%:R * B x y)) * B x y = -1 by field.
by rewrite oppr_ge0 ler10.
Qed.
End Bilinear.

Section Forms.
Variables (R : realFieldType) (d : nat).
Implicit Types (M N : 'M[R]_d) (x y u v : 'cV[R]_d).

(* x^T M y, for columns x and y *)
Definition form M x y : R := (x^T *m M *m y) 0 0.
(* x . y *)
Definition dot x y : R := (x^T *m y) 0 0.
Definition symmetric M := M^T = M.
Definition psd M := forall x, 0 <= form M x x.
Definition pd M := forall x, x != 0 -> 0 < form M x x.
(* tr(S M T^T): the form M summed over the rows of S and T, which have any number m of rows *)
Definition inner m M (S T : 'M[R]_(m, d)) : R := \tr (S *m M *m T^T).
Definition energy m M (S : 'M[R]_(m, d)) : R := inner M S S.

Lemma formE M x y : x^T *m M *m y = (form M x y)%:M.
Proof. exact: mx11_scalar. Qed.
Lemma dotE x y : x^T *m y = (dot x y)%:M.
Proof. exact: mx11_scalar. Qed.
Lemma form1 x y : form 1%:M x y = dot x y.
Proof. by rewrite /form mulmx1. Qed.
Lemma dotC x y : dot x y = dot y x.
Proof. by rewrite /dot -[x^T *m y]trmxK trmx_mul trmxK mxE. Qed.

Lemma form_sym M x y : symmetric M -> form M x y = form M y x.
Proof.
move=> symM; rewrite /form.
have -> : y^T *m M *m x = (x^T *m M *m y)^T by rewrite !trmx_mul trmxK symM mulmxA.
by rewrite [RHS]mxE.
Qed.

Lemma form_linear M c x y z : form M (x + c *: y) z = form M x z + c * form M y z.
Proof. by rewrite /form linearD linearZ /= !mulmxDl -!scalemxAl !mxE. Qed.
Lemma form_add M N x y : form (M + N) x y = form M x y + form N x y.
Proof. by rewrite /form mulmxDr mulmxDl mxE. Qed.
Lemma form_scale M c x y : form (c *: M) x y = c * form M x y.
Proof. by rewrite /form -scalemxAr -scalemxAl mxE. Qed.

Lemma form_outer u v x y : form (u *m v^T) x y = dot x u * dot v y.
Proof. by rewrite /form !mulmxA dotE -mulmxA dotE -scalar_mxM mxE mulr1n. Qed.

Lemma dot_ge0 x : 0 <= dot x x.
Proof. by rewrite /dot mxE sumr_ge0 // => i _; rewrite mxE -expr2 sqr_ge0. Qed.

Lemma dot_eq0 x : dot x x = 0 -> x = 0.
Proof.
move=> h; apply/matrixP=> i j; rewrite ord1 mxE.
have /psumr_eq0P z : forall l : 'I_d, true -> 0 <= x^T 0 l * x l 0 by move=> l _; rewrite mxE -expr2 sqr_ge0.
by move: h; rewrite /dot mxE => /z /(_ i isT) /eqP; rewrite mxE -expr2 sqrf_eq0 => /eqP.
Qed.

Lemma dot_gt0 x : x != 0 -> 0 < dot x x.
Proof. by move=> nz; rewrite lt_def dot_ge0 andbT; apply: contra nz => /eqP/dot_eq0 ->. Qed.

Lemma pd_psd M : pd M -> psd M.
Proof.
move=> h x; have [-> | nz] := eqVneq x 0; last exact/ltW/h.
by rewrite /form mulmx0 mxE.
Qed.

Lemma pd_unit M : pd M -> M \in unitmx.
Proof.
move=> h; rewrite -row_free_unit -kermx_eq0; apply/negPn/negP => /rowV0Pn [r /sub_kermxP rM nz].
have := h r^T; rewrite /form trmxK rM mul0mx mxE ltxx -trmx0 (inj_eq trmx_inj) => absurd.
by have := absurd nz.
Qed.

Lemma pd_scalar c : 0 < c -> pd c%:M.
Proof. by move=> pos x nz; rewrite -scalemx1 form_scale form1 mulr_gt0 ?dot_gt0. Qed.

Lemma pd_add M N : pd M -> psd N -> pd (M + N).
Proof. by move=> h g x nz; rewrite form_add ltr_paddr ?h ?g. Qed.

Lemma psd_outer u : psd (u *m u^T).
Proof. by move=> x; rewrite form_outer (dotC u) -expr2 sqr_ge0. Qed.

Lemma symmetric_outer u : symmetric (u *m u^T).
Proof. by rewrite /symmetric trmx_mul trmxK. Qed.

Lemma symmetric_add M N : symmetric M -> symmetric N -> symmetric (M + N).
Proof. by rewrite /symmetric linearD /= => -> ->. Qed.

Lemma symmetric_inv M : symmetric M -> symmetric (invmx M).
Proof. by rewrite /symmetric trmx_inv => ->. Qed.

Lemma form_inv M x : symmetric M -> M \in unitmx -> form (invmx M) x x = form M (invmx M *m x) (invmx M *m x).
Proof.
move=> symM unitM; rewrite /form trmx_mul (symmetric_inv symM).
by rewrite -(mulmxA _ _ M) mulVmx // mulmx1 mulmxA.
Qed.

Lemma pd_inv M : symmetric M -> pd M -> pd (invmx M).
Proof.
move=> symM h x nz; have unitM := pd_unit h; rewrite form_inv //; apply: h.
by apply: contra nz => /eqP e; rewrite -[x]mul1mx -(mulmxV unitM) -mulmxA e mulmx0.
Qed.

(* The energy is nonnegative, and what it does to a sum. *)
Lemma inner_rows m M (S T : 'M[R]_(m, d)) : inner M S T = \sum_i form M (row i S)^T (row i T)^T.
Proof.
apply: eq_bigr => i _; rewrite /form trmxK -row_mul.
by rewrite [LHS]mxE [RHS]mxE; apply: eq_bigr => j _; rewrite !mxE.
Qed.

Lemma energy_ge0 m M (S : 'M[R]_(m, d)) : psd M -> 0 <= energy M S.
Proof. by move=> h; rewrite /energy inner_rows sumr_ge0. Qed.

Lemma inner_sym m M (S T : 'M[R]_(m, d)) : symmetric M -> inner M S T = inner M T S.
Proof. by move=> h; rewrite !inner_rows; apply: eq_bigr => i _; exact: form_sym. Qed.

Lemma inner_linear m M c (S T U : 'M[R]_(m, d)) : inner M (S + c *: T) U = inner M S U + c * inner M T U.
Proof. by rewrite /inner !mulmxDl linearD /= -!scalemxAl linearZ. Qed.

(* Cauchy and Schwarz's inequality for a positive semidefinite form, on columns and on matrices. *)
Theorem cauchy_schwarz M x y : symmetric M -> psd M -> form M x y ^+ 2 <= form M x x * form M y y.
Proof.
move=> symM h; apply: bilinear_cauchy_schwarz => //; first by move=> a b; exact: form_sym.
by move=> c a b e; exact: form_linear.
Qed.

Lemma cauchy_schwarz_energy m M (S T : 'M[R]_(m, d)) :
  symmetric M -> psd M -> inner M S T ^+ 2 <= energy M S * energy M T.
Proof.
move=> symM h; apply: bilinear_cauchy_schwarz => [a b | c a b e | a]; first exact: inner_sym.
  exact: inner_linear.
exact: energy_ge0.
Qed.
End Forms.

(* Numbers as 1 x 1 matrices, in which the falsified twins have their counterexamples. *)
Section One.
Variable R : realFieldType.
Implicit Types (m x y : R).

Lemma one_inj x y : x%:M = y%:M :> 'M_1 -> x = y.
Proof. by move=> /matrixP /(_ 0 0); rewrite !mxE !mulr1n. Qed.
Lemma one_eq0 x : x%:M = 0 :> 'M_1 -> x = 0.
Proof. by move=> /matrixP /(_ 0 0); rewrite !mxE mulr1n. Qed.
Lemma one_form m x y : form (m%:M : 'M_1) x%:M y%:M = x * m * y.
Proof. by rewrite /form tr_scalar_mx -!scalar_mxM mxE mulr1n. Qed.
Lemma one_dot x y : dot (x%:M : 'M_1) y%:M = x * y.
Proof. by rewrite -form1 one_form mulr1. Qed.
Lemma one_energy m x : energy (m%:M : 'M_1) (x%:M : 'M_1) = x ^+ 2 * m.
Proof. by rewrite /energy /inner tr_scalar_mx -!scalar_mxM mxtrace_scalar mulr1n; ring. Qed.
Lemma one_psd m : 0 <= m -> psd (m%:M : 'M_1).
Proof. by move=> h x; rewrite [x]mx11_scalar one_form mulrAC -expr2 mulr_ge0 ?sqr_ge0. Qed.
Lemma one_pd m : 0 < m -> pd (m%:M : 'M_1).
Proof. exact: pd_scalar. Qed.
Lemma one_symmetric m : symmetric (m%:M : 'M_1).
Proof. exact: tr_scalar_mx. Qed.
End One.

(* Twin: the same with twice the left side. *)
Theorem twin_cauchy_schwarz : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) x y,
  symmetric M -> psd M -> 2%:R * form M x y ^+ 2 <= form M x x * form M y y).
Proof.
move=> R h; have := h 1%N 1%:M 1%:M 1%:M (one_symmetric _) (one_psd ler01).
by rewrite one_form !mulr1 expr1n mulr1 lern1.
Qed.
