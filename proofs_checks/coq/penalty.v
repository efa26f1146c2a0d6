(* The inverse of the penalty matrix, M = lam0 I + sum u u^T, as one more direction u comes in. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp.algebra_tactics Require Import ring.
From Linattest Require Import forms.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Penalty.
Variables (R : realFieldType) (d : nat).
Implicit Types (M A : 'M[R]_d) (x y u v : 'cV[R]_d).

(* Sherman and Morrison: one rank-one step of M takes the inverse with it. No symmetry is needed. *)
Theorem sherman_morrison M u v :
  M \in unitmx -> 1 + form (invmx M) v u != 0 ->
  (M + u *m v^T) *m
    (invmx M - (1 + form (invmx M) v u)^-1 *: (invmx M *m u *m (v^T *m invmx M))) = 1%:M.
Proof.
move=> unitM nz; set A := invmx M; set w := v^T *m A; set f := form A v u.
have first : M *m (A *m u *m w) = u *m w by rewrite !mulmxA mulmxV // mul1mx.
have second : u *m v^T *m (A *m u *m w) = f *: (u *m w).
  have -> : u *m v^T *m (A *m u *m w) = u *m (v^T *m A *m u) *m w by rewrite !mulmxA.
  by rewrite formE mul_mx_scalar -scalemxAl.
rewrite mulmxDl !mulmxBr mulmxV // -!scalemxAr first second -mulmxA -/w.
rewrite scalerA -addrA [- _ + _]addrC -addrA -opprD -scalerDl.
have -> : (1 + f)^-1 * f + (1 + f)^-1 = 1 by field.
by rewrite scale1r subrr addr0.
Qed.

(* 1 + u^T A u, by which the step divides, is at least 1 for every u. *)
Theorem denominator_at_least_one A u : psd A -> 1 <= 1 + form A u u.
Proof. by move=> h; rewrite ler_addl; apply: h. Qed.

(* The recursion that VLA runs: A <- A - z z^T / (1 + u . z), z = A u, is the inverse of M + u u^T. *)
Theorem symmetric_sherman_morrison M u :
  symmetric M -> pd M ->
  invmx (M + u *m u^T) = let z := invmx M *m u in invmx M - (1 + dot u z)^-1 *: (z *m z^T).
Proof.
move=> symM posM /=; have unitM := pd_unit posM.
have denominator : 1 + form (invmx M) u u != 0.
  by apply/lt0r_neq0/(lt_le_trans ltr01)/denominator_at_least_one/pd_psd/pd_inv.
have := sherman_morrison unitM denominator; set B := invmx M - _ => product.
have unitN : M + u *m u^T \in unitmx by apply/pd_unit/pd_add/psd_outer.
rewrite trmx_mul (symmetric_inv symM) /dot mulmxA -/(form _ u u) -/B.
by rewrite -[LHS]mulmx1 -product mulmxA mulVmx // mul1mx.
Qed.

(* The inverse only shrinks: x^T A_t x <= x^T A_{t-1} x. *)
Theorem inverse_shrinks M u x :
  symmetric M -> pd M -> form (invmx (M + u *m u^T)) x x <= form (invmx M) x x.
Proof.
move=> symM posM; rewrite symmetric_sherman_morrison //=; set z := invmx M *m u.
rewrite form_add -scaleNr form_scale ger_addl mulNr oppr_le0 mulr_ge0 ?psd_outer //.
rewrite invr_ge0 addr_ge0 ?ler01 // /dot /z mulmxA; exact/pd_psd/pd_inv.
Qed.

(* The determinant lemma, for any u and v. *)
Lemma determinant_one_plus u v : \det (1%:M + u *m v^T) = 1 + dot v u.
Proof.
pose L : 'M[R]_(d + 1) := block_mx 1%:M 0 v^T 1%:M.
pose K : 'M[R]_(d + 1) := block_mx 1%:M 0 (- v^T) 1%:M.
pose D : 'M[R]_(d + 1) := block_mx (1%:M + u *m v^T) u 0 1%:M.
have product : L *m D *m K = block_mx 1%:M u 0 (1%:M + v^T *m u).
  rewrite /L /D /K !mulmx_block !mul1mx !mulmx1 !mul0mx !mulmx0 !addr0 !add0r.
  rewrite mulmxN mulmxDr mulmx1 mulmxDl mul1mx mulmxN mulmxA addrK.
  congr (block_mx _ _ _ _); last exact: addrC.
  by rewrite -opprD [X in _ - X]addrC subrr.
have := congr1 determinant product.
rewrite !det_mulmx /L /K /D !det_lblock !det_ublock !det1 !mulr1 !mul1r => ->.
by rewrite dotE -raddfD det_scalar1.
Qed.

Theorem determinant_lemma M u v :
  M \in unitmx -> \det (M + u *m v^T) = \det M * (1 + form (invmx M) v u).
Proof.
move=> unitM; have -> : M + u *m v^T = M *m (1%:M + (invmx M *m u) *m v^T).
  by rewrite mulmxDr mulmx1 !mulmxA mulmxV // mul1mx.
by rewrite det_mulmx determinant_one_plus /dot mulmxA.
Qed.
End Penalty.

(* Twin: Sherman and Morrison with the other sign. *)
Theorem twin_sherman_morrison : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) (u v : 'cV_d),
  M \in unitmx -> 1 + form (invmx M) v u != 0 ->
  (M + u *m v^T) *m
    (invmx M + (1 + form (invmx M) v u)^-1 *: (invmx M *m u *m (v^T *m invmx M))) = 1%:M).
Proof.
move=> R /(_ 1%N 1%:M 1%:M 1%:M); rewrite invmx1 unitmx1 one_form !mulr1 => /(_ isT).
have two : 1 + 1 != 0 :> R by rewrite -mulr2n pnatr_eq0.
move=> /(_ two); rewrite tr_scalar_mx -!scalar_mxM !mulr1 scale_scalar_mx -!raddfD -scalar_mxM => /one_inj.
rewrite mulr1 mulrDr mulr1 divff // => /eqP; rewrite -subr_eq0 addrK; exact/negP.
Qed.

(* Twin: the denominator is at least 2. *)
Theorem twin_denominator_at_least_one : forall R : realFieldType, ~ (forall d (A : 'M[R]_d) u,
  psd A -> 2%:R <= 1 + form A u u).
Proof.
move=> R /(_ 1%N 1%:M 0 (one_psd ler01)).
by rewrite /form mulmx0 mxE addr0 lern1.
Qed.

(* Twin: the update with z z^T not divided. *)
Theorem twin_symmetric_sherman_morrison : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) (u : 'cV_d),
  symmetric M -> pd M ->
  invmx (M + u *m u^T) = let z := invmx M *m u in invmx M - z *m z^T).
Proof.
move=> R /(_ 1%N 1%:M 1%:M (one_symmetric _) (one_pd ltr01)) /=.
rewrite invmx1 tr_scalar_mx -!scalar_mxM !mulr1 tr_scalar_mx -scalar_mxM mulr1 subrr -raddfD invmx_scalar.
move=> /one_eq0 /eqP; rewrite invr_eq0 -mulr2n pnatr_eq0.
by [].
Qed.

(* Twin: the inverse only grows. *)
Theorem twin_inverse_shrinks : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) (u x : 'cV_d),
  symmetric M -> pd M -> form (invmx M) x x <= form (invmx (M + u *m u^T)) x x).
Proof.
move=> R /(_ 1%N 1%:M 1%:M 1%:M (one_symmetric _) (one_pd ltr01)).
rewrite invmx1 tr_scalar_mx -scalar_mxM -raddfD invmx_scalar !one_form !mul1r !mulr1.
by rewrite invf_ge1 ?addr_gt0 ?ltr01 // ger_addl ler10.
Qed.

(* Twin: the determinant lemma with the form counted twice. *)
Theorem twin_determinant_lemma : forall R : realFieldType, ~ (forall d (M : 'M[R]_d) (u v : 'cV_d),
  M \in unitmx -> \det (M + u *m v^T) = \det M * (1 + form (invmx M) v u *+ 2)).
Proof.
move=> R /(_ 1%N 1%:M 1%:M 1%:M (unitmx1 _ _)).
rewrite invmx1 tr_scalar_mx -scalar_mxM -raddfD !det_scalar1 one_form.
by rewrite !mul1r => /addrI /eqP; rewrite eq_sym pnatr_eq1.
Qed.
